"""Findings for people: terminal tables, tidy files, HTML pages with plots."""
