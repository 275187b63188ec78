"""What people look at: pictures for papers, and one page that needs no network."""
