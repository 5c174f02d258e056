"""What a model is made of and, later, what one step of it costs."""
