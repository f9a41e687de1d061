"""Those who take the money: one file each, behind one protocol."""
