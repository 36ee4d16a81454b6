"""The shape of work: specs of workflows, their codec, checks and signatures."""
