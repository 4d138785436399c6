"""Jobs under limits: gates, counts of running jobs, and the claims that read them."""
