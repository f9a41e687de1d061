"""What every command needs, of whatever feature: the application it works on, and how results look. Imports no feature."""
