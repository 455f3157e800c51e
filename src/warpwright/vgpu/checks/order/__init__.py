"""What happens before what."""
