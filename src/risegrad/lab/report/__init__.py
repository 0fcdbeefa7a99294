"""``rise report``: records in, one self-contained page and Markdown and LaTeX tables out."""
