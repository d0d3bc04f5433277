"""Checkpoints: their layout on disk, one writer, one reader, and the manifest that tells whole from damaged."""
