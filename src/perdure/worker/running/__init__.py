"""Running claimed jobs: slots, threads, child processes, deadlines and the report of each outcome."""
