"""What differs between configurations, results, versions and traces."""
