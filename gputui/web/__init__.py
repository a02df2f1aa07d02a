"""Server that shows consoles in browsers."""
