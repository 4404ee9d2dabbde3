"""The pages: their structure, forms and dialogs. What changes every second is drawn by the assets in the browser."""
