"""The Helm chart `evalstop`, and what generates the parts of it that follow from the code."""
