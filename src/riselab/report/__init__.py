"""``rise report``: records in, one self-contained page and its tables as Markdown out."""
