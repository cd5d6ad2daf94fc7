"""What the saliency maps of a study show."""
