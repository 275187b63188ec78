"""What people look at: figures for papers, and one page that needs no network."""
