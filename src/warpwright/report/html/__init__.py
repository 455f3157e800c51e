"""Reports as one HTML file that loads nothing: pages of profiles, verdicts and launches."""
