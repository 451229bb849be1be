.PHONY: setup
setup:
	@echo placeholder
