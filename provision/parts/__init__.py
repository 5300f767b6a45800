"""What a host should have, part by part: what is asked for, what that means here, and what has to change."""
