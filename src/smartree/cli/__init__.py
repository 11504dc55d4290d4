"""The command line: one file per verb. Importing it must stay fast, so torch is imported inside the verbs only."""
