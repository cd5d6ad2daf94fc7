"""Steps that exchange weights every few steps, or gradients late (optional)."""
