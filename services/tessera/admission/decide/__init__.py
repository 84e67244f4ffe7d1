"""What admission decides, without any I/O: `parse` reads a command, `verdict` judges a job, `fact` says the outcome."""
