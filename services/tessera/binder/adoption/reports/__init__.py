"""Reports to users' pods and their owners: why they wait, why they were refused."""
