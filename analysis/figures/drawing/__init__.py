"""What several figures share: inputs, style, axes, artists, layout, captions, and three kinds of charts."""
