"""Temperance inside other frameworks: one file each, which brings that framework in."""

__all__: list[str] = []
