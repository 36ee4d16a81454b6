"""What touches Ray, processes and sockets. The core decides; this carries out."""
