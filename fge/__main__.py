from fge import show_config

show_config()
