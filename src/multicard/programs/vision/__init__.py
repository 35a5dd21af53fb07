"""Image-classification training: data, model, strategies, precision and the loop."""
