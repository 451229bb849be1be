"""What a stage runs on: its processes, one a GPU (`ranks`)."""
