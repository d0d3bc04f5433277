"""The one backend: devices, precision, parallelism and the runtime that training, evaluation and verify share."""
