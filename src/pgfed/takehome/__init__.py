"""What a site takes home: its model file, what it is worth, and how it is used."""
