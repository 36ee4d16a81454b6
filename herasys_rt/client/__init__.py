"""The client's side: connect, submit, follow runs. Imports no Ray."""
