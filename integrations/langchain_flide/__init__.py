"""langchain_flide: LangChain and LangGraph parts on top of flide_agent.client. Nothing public yet."""
