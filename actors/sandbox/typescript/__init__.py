"""The TypeScript guest: translation to JavaScript, and the engine that runs it."""
