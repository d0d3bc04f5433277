"""Publishing a policy: stage what may leave, scan it, write a folder or make one commit on the Hub."""
