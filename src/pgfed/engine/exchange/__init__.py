"""What passes between server and clients: made smaller, checked, averaged, and attacked."""
