"""Evidence about stop rules: histories of evals in, how each rule would have done out."""
