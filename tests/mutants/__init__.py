"""Can the tests fail? Small faults are planted in the code, one at a time, and the tests have to notice: `make mutants`."""
