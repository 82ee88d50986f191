"""The pages of the dashboard, one module each: what is asked of the services, and what the template gets."""
