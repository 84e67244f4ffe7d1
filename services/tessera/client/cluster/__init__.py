"""An installation as its operator sees it: doctor, first configuration, apply, uninstall."""
