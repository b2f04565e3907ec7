"""The operator: watches, scrapes, asks the brain, carries out its plans. Decides nothing itself."""
