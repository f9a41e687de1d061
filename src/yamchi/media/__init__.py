"""Media: pictures come in from strangers, and leave in the sizes that pages want."""
