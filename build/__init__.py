"""Makes the environment, the image, the pictures and the wheels; checks what runs on other machines."""
