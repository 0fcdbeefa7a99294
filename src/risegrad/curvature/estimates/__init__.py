"""Traces, spectra and block terms, estimated from products."""
