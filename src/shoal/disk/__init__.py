"""What shoal writes and reads back: run folders, sweep folders, and cached measurements."""
