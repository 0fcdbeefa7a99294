"""The commands that look ahead: what they are asked, model and data for it, local validation."""
