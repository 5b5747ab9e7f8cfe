"""The methods: what one is, the steps they share, and one file for each."""
