"""What a method forgets at each amount of learning: the only picture in which two are compared."""
