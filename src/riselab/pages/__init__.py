"""One kit for every page: tables, text, charts, and the HTML around them."""
