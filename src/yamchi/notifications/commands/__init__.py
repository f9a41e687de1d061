"""The commands of notifications, one file each."""
