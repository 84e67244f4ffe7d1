"""Lost nodes that a webhook turns off."""
